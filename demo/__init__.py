"""
The main job on one machine: real processes, real HTTP, a worker and a consumer killed, and an audit of what arrived.

`stack` lists the processes, `child_processes` runs them, and `load` sends requests to the API. The `audit` of the test kit compares
the answers of the API with the messages that the subscriber received (`received`), and `effects` compares them with the events that
the consumers recorded. `view` shows progress, `report` the result, and `job` calls all of them in order.
"""
