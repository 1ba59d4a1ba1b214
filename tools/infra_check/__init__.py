"""
Offline checks of everything under infra/: `make check-infra`. No Azure, no cluster, no container engine, no compiler.
"""
