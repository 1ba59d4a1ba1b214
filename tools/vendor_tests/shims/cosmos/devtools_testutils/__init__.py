"""A stand-in for the test tools of the SDK's repository, which are not published."""
