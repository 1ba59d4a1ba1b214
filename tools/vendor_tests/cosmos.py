"""The tests of azure-cosmos: those that Microsoft runs on its emulator, and the live ones of one region."""

from __future__ import annotations

from tools.vendor_tests.suite import Addresses, Edit, Suite, parts


def environment(addresses: Addresses) -> dict[str, str]:
    """Return the variables that name the account. Tests of several regions use `localhost` and `127.0.0.1` as two of them."""
    account = parts(addresses.cosmos)
    return {
        "ACCOUNT_HOST": account["AccountEndpoint"].replace("127.0.0.1", "localhost"),
        "ACCOUNT_KEY": account["AccountKey"],
        "GLOBAL_ACCOUNT_KEY": account["AccountKey"],
    }


# Of the two names, the one that Microsoft's emulator gives as its own.
_FIRST_REGION = 'test_config.TestConfig.local_host.replace("localhost", "127.0.0.1")'


def first_region(locations: str) -> list[Edit]:
    """
    Give the first of two regions its address, where tests expect it to be what the account says of itself.
    """
    old = f'{locations}[0]["name"] = write_region_name'
    new = f'{locations}[0] = {{"name": write_region_name, "databaseAccountEndpoint": {_FIRST_REGION}}}'
    files = ("_fault_injection_transport.py", "_fault_injection_transport_async.py")
    return [Edit(file=file, old=old, new=new) for file in files]


SUITE = Suite(
    name="cosmos",
    distribution="azure-cosmos",
    environment=environment,
    markers="cosmosEmulator or cosmosLong or cosmosQuery or cosmosSplit",
    # Like the latency of a network: some tests have timeouts of a few milliseconds that are meant to pass.
    serve=("--cosmos-latency-ms", "10"),
    test_seconds=300,
    edits=(
        # An account whose host is `local_host` is an emulator to the tests: they use its key instead of Entra ID.
        Edit(
            file="test_config.py",
            old="local_host = 'https://localhost:8081/'",
            new="local_host = os.environ['ACCOUNT_HOST']",
        ),
        *first_region("readable_locations"),
        *first_region("writable_locations"),
        Edit(
            file="_fault_injection_transport_async.py",
            old="first_region_url: str = None",
            new=f"first_region_url: str = {_FIRST_REGION}",
        ),
    ),
)
