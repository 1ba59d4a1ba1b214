"""
A demo that runs the contacts example on one machine, kills a worker and a consumer, and checks that every event arrived.

All programs run as real processes and talk over real HTTP. `stack` starts them, `child_processes` ends them, and `load` sends requests
to the API. The `audit` of the test kit compares the answers of the API with the messages that the subscriber received (`received`).
`effects` compares those answers with the events that the consumers recorded. `view` shows the progress, `report` shows the result, and
`job` runs all these parts in order.
"""
