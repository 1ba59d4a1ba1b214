"""
The tests of azure-cosmos: those that Microsoft runs on its emulator, and the live ones of one region.
"""

from __future__ import annotations

from tools.vendor_tests.suite import Addresses, Edit, Suite, parts


def environment(addresses: Addresses) -> dict[str, str]:
    """
    Name the account. Tests of several regions take `localhost` and `127.0.0.1` for two of them.
    """
    account = parts(addresses.cosmos)
    return {
        "ACCOUNT_HOST": account["AccountEndpoint"].replace("127.0.0.1", "localhost"),
        "ACCOUNT_KEY": account["AccountKey"],
        "GLOBAL_ACCOUNT_KEY": account["AccountKey"],
    }


SUITE = Suite(
    name="cosmos",
    distribution="azure-cosmos",
    environment=environment,
    markers="cosmosEmulator or cosmosLong or cosmosQuery or cosmosSplit",
    # As a network has it: some tests have timeouts of a few milliseconds, and mean them to pass.
    serve=("--cosmos-latency-ms", "10"),
    edits=(
        # An account whose host is `local_host` is an emulator to the tests: they use its key instead of Entra ID.
        Edit(
            file="test_config.py",
            old="local_host = 'https://localhost:8081/'",
            new="local_host = os.environ['ACCOUNT_HOST']",
        ),
    ),
)
