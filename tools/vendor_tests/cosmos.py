"""
The tests of azure-cosmos: those that Microsoft runs on its emulator, and the live ones of one region.
"""

from __future__ import annotations

from tools.vendor_tests.suite import Addresses, Edit, Suite, parts


def environment(addresses: Addresses) -> dict[str, str]:
    """
    Name the account; tests of several regions find the same one.
    """
    account = parts(addresses.cosmos)
    return {
        "ACCOUNT_HOST": account["AccountEndpoint"],
        "ACCOUNT_KEY": account["AccountKey"],
        "GLOBAL_ACCOUNT_KEY": account["AccountKey"],
    }


SUITE = Suite(
    name="cosmos",
    distribution="azure-cosmos",
    environment=environment,
    markers="cosmosEmulator or cosmosLong or cosmosQuery or cosmosSplit",
    edits=(
        # An account whose host is `local_host` is an emulator to the tests: they use its key instead of Entra ID.
        Edit(
            file="test_config.py",
            old="local_host = 'https://localhost:8081/'",
            new="local_host = os.environ['ACCOUNT_HOST']",
        ),
    ),
)
