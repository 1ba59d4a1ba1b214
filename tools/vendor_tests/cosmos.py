"""The suite of azure-cosmos: the tests that Microsoft runs on its own emulator, and those of a live account with one region."""

from __future__ import annotations

from tools.vendor_tests.suite import Addresses, Edit, Suite, parts


def environment(addresses: Addresses) -> dict[str, str]:
    """
    Return the environment variables that name the account. Tests of several regions use `localhost` and `127.0.0.1` as the hosts of two
    regions.
    """
    account = parts(addresses.cosmos)
    return {
        "ACCOUNT_HOST": account["AccountEndpoint"].replace("127.0.0.1", "localhost"),
        "ACCOUNT_KEY": account["AccountKey"],
        "GLOBAL_ACCOUNT_KEY": account["AccountKey"],
    }


# Python code that returns the account's address with 127.0.0.1 in place of localhost. Microsoft's emulator reports 127.0.0.1 as its
# host.
_FIRST_REGION = 'test_config.TestConfig.local_host.replace("localhost", "127.0.0.1")'


def first_region(locations: str) -> list[Edit]:
    """
    Return edits of two of Microsoft's test files, which invent an account with two regions. After the edits, the first region has the
    address of the real account (the emulator), as the tests expect.
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
    # Delay each answer by 10 ms, as a network would. Some tests set timeouts of a few milliseconds, and
    # expect an error.
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
