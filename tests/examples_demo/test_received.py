"""Tests of the file of received messages, which the demo reads while the subscriber writes it."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from demo.received import RecordReader
from examples.contacts.received import ReceivedMessage, to_line

texts = st.text(max_size=20)
messages = st.builds(
    ReceivedMessage,
    message_id=texts,
    session_id=texts,
    subject=texts,
    entity_version=st.none() | st.integers(1, 10),
    sequence=st.none() | st.integers(0, 10),
    sequence_number=st.integers(0, 2**63),
    enqueued_at=st.none() | texts,
    created_at=st.none() | texts,
    received_ns=st.integers(0, 2**63),
)


@given(st.lists(messages, max_size=8), st.data())
def test_each_received_message_is_read_once_although_writes_are_interrupted(tmp_path_factory, written, data):
    path = tmp_path_factory.mktemp("record") / "received.jsonl"
    reader = RecordReader(path)
    content = "".join(map(to_line, written)).encode()
    cuts = sorted(data.draw(st.lists(st.integers(0, len(content)), max_size=4)))
    read = []
    for begin, end in zip([0, *cuts], [*cuts, len(content)], strict=True):
        with path.open("ab") as file:
            file.write(content[begin:end])
        read += reader.read_new()
    assert written == read


def test_a_missing_file_of_received_messages_counts_as_empty(tmp_path):
    assert [] == RecordReader(tmp_path / "none.jsonl").read_new()
