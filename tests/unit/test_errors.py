"""Errors of the library keep their text and attributes when they are pickled, as between processes."""

import pickle

import pytest

from cosmos_outbox import errors

ERRORS = [
    errors.NotFound("It is gone.", document_id="n1", partition_key=("t1", "u1")),
    errors.UnstorableValue(of="Note", document_id="n1", partition_key="n1", field="x", reason="it is a set"),
    errors.MixedPartitionKeys("a", "b", advice="commit one after another"),
]


@pytest.mark.parametrize("error", ERRORS, ids=lambda error: type(error).__name__)
def test_an_error_keeps_its_text_and_attributes_when_it_is_pickled(error: errors.OutboxError):
    read = pickle.loads(pickle.dumps(error))  # noqa: S301 - its own

    assert type(read) is type(error)
    assert (str(read), vars(read)) == (str(error), vars(error))
