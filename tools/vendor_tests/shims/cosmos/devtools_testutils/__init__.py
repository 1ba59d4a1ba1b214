"""Replaces the test tools of the SDK's repository, which are not published as a package."""
