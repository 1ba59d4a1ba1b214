"""
Run langchain-azure-cosmosdb against the Cosmos DB emulator.

The program uses LangGraph's checkpoints (history and resumed state), its store (filters, namespaces, pages) and its cache, and a chat
history that two writers extend.
"""

from __future__ import annotations

import asyncio
import os
from typing import TypedDict

from langchain_azure_cosmosdb import (
    CosmosDBCacheSync,
    CosmosDBChatMessageHistory,
    CosmosDBSaver,
    CosmosDBSaverSync,
    CosmosDBStore,
)
from langchain_core.messages import AIMessage, HumanMessage
from langgraph.graph import END, START, StateGraph

ENDPOINT, KEY = os.environ["COSMOS_ENDPOINT"], os.environ["COSMOS_KEY"]


class State(TypedDict):
    count: int


def graph() -> StateGraph:
    built = StateGraph(State)
    built.add_node("one", lambda state: {"count": state["count"] + 1})
    built.add_node("two", lambda state: {"count": state["count"] * 10})
    built.add_edge(START, "one")
    built.add_edge("one", "two")
    built.add_edge("two", END)
    return built


def checkpoints() -> None:
    with CosmosDBSaverSync("agents", "checkpoints", endpoint=ENDPOINT, key=KEY) as saver:
        thread = {"configurable": {"thread_id": "ada"}}
        compiled = graph().compile(checkpointer=saver, interrupt_before=["two"])
        compiled.invoke({"count": 1}, thread)
        assert compiled.get_state(thread).next == ("two",)
        compiled.invoke(None, thread)
        history = [state.values.get("count") for state in compiled.get_state_history(thread)]
    assert history == [20, 2, 1, None], history
    print("langgraph: a run was interrupted and resumed, its history is in order")


async def many_threads() -> None:
    async with CosmosDBSaver.from_conn_info(
        endpoint=ENDPOINT, key=KEY, database_name="agents", container_name="many"
    ) as saver:
        compiled = graph().compile(checkpointer=saver)
        threads = [{"configurable": {"thread_id": str(number)}} for number in range(10)]
        await asyncio.gather(
            *(compiled.ainvoke({"count": number}, thread) for number, thread in enumerate(threads))
        )
        counts = [(await compiled.aget_state(thread)).values["count"] for thread in threads]
    assert counts == [(number + 1) * 10 for number in range(10)], counts
    print("langgraph: ten threads at once, each with its own state")


def store() -> None:
    notes = CosmosDBStore.from_endpoint(
        ENDPOINT, credential=KEY, database_name="agents", container_name="store"
    )
    notes.setup()
    for number in range(12):
        notes.put(("users", "ada"), f"note {number:02}", {"number": number, "even": number % 2 == 0})
    notes.put(("users", "bob"), "note", {"number": 100})
    notes.delete(("users", "ada"), "note 11")

    assert notes.get(("users", "ada"), "note 03").value == {"number": 3, "even": False}
    assert notes.get(("users", "ada"), "note 11") is None
    even = notes.search(("users", "ada"), filter={"even": True}, limit=100)
    assert sorted(item.value["number"] for item in even) == [0, 2, 4, 6, 8, 10]
    pages = [notes.search(("users", "ada"), limit=5, offset=offset) for offset in (0, 5, 10)]
    assert [len(page) for page in pages] == [5, 5, 1]
    assert len({item.key for page in pages for item in page}) == 11
    assert sorted(notes.list_namespaces(prefix=("users",))) == [("users", "ada"), ("users", "bob")]
    print("langgraph: the store filters, pages and lists its namespaces")


def cache() -> None:
    with CosmosDBCacheSync("agents", "cache", endpoint=ENDPOINT, key=KEY) as answers:
        answers.set({(("nodes",), "a"): (1, None), (("nodes",), "b"): (2, None)})
        assert answers.get([(("nodes",), "a"), (("nodes",), "c")]) == {(("nodes",), "a"): 1}
        answers.clear([("nodes",)])
        assert answers.get([(("nodes",), "b")]) == {}
    print("langgraph: the cache keeps, misses and forgets")


def history() -> CosmosDBChatMessageHistory:
    chat = CosmosDBChatMessageHistory(ENDPOINT, "agents", "chats", "session", "ada", credential=KEY)
    chat.prepare_cosmos()
    return chat


def chats() -> None:
    history().add_message(HumanMessage("hello"))
    one, other = history(), history()
    one.add_message(AIMessage("one"))
    other.add_message(
        AIMessage("other")
    )  # this write has an old etag and is refused with 412, so the library reads again
    told = [message.content for message in history().messages]
    assert told == ["hello", "one", "other"], told
    history().clear()
    assert history().messages == []
    print("langchain: two writers of one chat lost nothing")


checkpoints()
asyncio.run(many_threads())
store()
cache()
chats()
