"""
Checks everything under infra/ offline, for `make check-infra`. The checks need no Azure, no cluster, no container engine and no
compiler.
"""
