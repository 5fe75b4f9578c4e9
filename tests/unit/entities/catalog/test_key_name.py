"""The index of authorization rules by name, compared with a search of all entities."""

from __future__ import annotations

import random
from typing import Any

from isthmus.entities import QueueDescription, TopicDescription
from isthmus.entities.catalog.description import AuthorizationRule
from isthmus.entities.hub import EventHubDescription
from isthmus.errors import StoreError

NAMES = ("a", "b", "c")


def rules(names: list[str]) -> list[AuthorizationRule]:
    return [AuthorizationRule(name, "p", "s", ["Send"]) for name in names]


def having(engine: Any, key_name: str) -> list[str]:
    """What a look at all of them finds."""
    found = [*engine.list_queues(), *engine.list_topics()]
    found += [(name, engine.hubs.get(name)) for name in engine.hubs.names()]
    return sorted(
        name.lower() for name, one in found if key_name in {rule.key_name for rule in one.authorization_rules}
    )


def test_the_index_finds_what_a_look_at_all_entities_finds_i1(namespace: Any) -> None:
    chance = random.Random(7)
    for _ in range(300):
        engine = namespace.engine
        kind = chance.choice(("queue", "topic", "hub"))
        name = f"{kind.title()}-{chance.randrange(4)}"
        wanted = rules(chance.sample(NAMES, chance.randrange(3)))
        find, create, update, delete = {
            "queue": (engine.get_queue, engine.create_queue, engine.update_queue, engine.delete_queue),
            "topic": (engine.get_topic, engine.create_topic, engine.update_topic, engine.delete_topic),
            "hub": (engine.hubs.get, engine.hubs.create, engine.hubs.update, engine.hubs.delete),
        }[kind]
        make = {"queue": QueueDescription, "topic": TopicDescription, "hub": EventHubDescription}[kind]
        if find(name) is None:
            create(name, make(authorization_rules=wanted))
        elif chance.random() < 0.5:
            update(name.upper(), make(authorization_rules=wanted))
        else:
            delete(name.upper())
        then = chance.random()
        if then < 0.3:
            namespace.commit()
        elif then < 0.4:
            namespace.crash()
        elif then < 0.5:
            commit = engine.begin_commit()
            assert commit is not None
            engine.fail_commit(commit, StoreError("the disk is gone"))
        engine = namespace.engine
        for key_name in (*NAMES, "none"):
            found = [*engine.key_names.having(key_name), *engine.hubs.key_names.having(key_name)]
            assert sorted(found) == having(engine, key_name)
