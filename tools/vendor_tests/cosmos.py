"""The suite of azure-cosmos: the tests that Microsoft runs on its own emulator, and those of a live account with one region."""

from __future__ import annotations

from tools.vendor_tests.suite import Addresses, Edit, Suite, parts


def environment(addresses: Addresses) -> dict[str, str]:
    """
    Return the environment variables that name the account. Tests of several regions take `localhost` and `127.0.0.1` as two
    regions.
    """
    account = parts(addresses.cosmos)
    return {
        "ACCOUNT_HOST": account["AccountEndpoint"].replace("127.0.0.1", "localhost"),
        "ACCOUNT_KEY": account["AccountKey"],
        "GLOBAL_ACCOUNT_KEY": account["AccountKey"],
    }


# Of the two host names, this is the one that Microsoft's emulator reports as its own.
_FIRST_REGION = 'test_config.TestConfig.local_host.replace("localhost", "127.0.0.1")'


def first_region(locations: str) -> list[Edit]:
    """
    Return edits that give the first of two regions an address. The tests expect it to have the address that the account reports for
    itself.
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
    # This latency is like that of a network. Some tests set timeouts of a few milliseconds and expect them to be exceeded.
    serve=("--cosmos-latency-ms", "10"),
    test_seconds=300,
    edits=(
        # The tests treat an account whose host is `local_host` as an emulator, for which they use a key instead of Entra ID.
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
