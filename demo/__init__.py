"""
The main job on one machine: real processes, real HTTP, a worker and a consumer killed, and an audit of what arrived.

`child_processes` runs the processes, `stack` says which ones there are, `load` drives the API. The
`audit` of the test kit compares what the API answered with what the subscriber received (`received`), `effects` with what the consumers made of it, `view` and `report` show it, `job` puts them in order.
"""
