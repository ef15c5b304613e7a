"""What schemathesis cannot know from the OpenAPI document of Orchestrix."""

import schemathesis

# Longer waits are right, but nobody has the time.
WAIT_MS = 5


def parts(value):
    """All objects of a body, but not what is in payloads and results: these are anybody's."""
    if isinstance(value, dict):
        yield value
        for name, inner in value.items():
            if name not in ("payload", "result"):
                yield from parts(inner)
    elif isinstance(value, list):
        for inner in value:
            yield from parts(inner)


def is_whole(value):
    return isinstance(value, float) and value.is_integer()


def written_whole(value):
    """For JSON Schema 1.0 is an integer; Orchestrix takes integers without a fraction only."""
    if isinstance(value, list):
        return [int(inner) if is_whole(inner) else inner for inner in value]
    return int(value) if is_whole(value) else value


# Leases that were handed out and not used yet: a task and its lease.
LEASES = []


@schemathesis.hook
def filter_query(context, query):
    """An empty value is as if it were not given, whatever the type."""
    return not query or "" not in query.values()


@schemathesis.hook
def after_call(context, case, response):
    if response.status_code == 200 and case.operation.path.endswith("/lease"):
        leases = response.json()["leases"]
        LEASES.extend((leased["task_id"], leased["lease_id"]) for leased in leases)


def use_lease(case):
    """Reports are about a task that is leased, as long as there is one."""
    if LEASES and "id" in case.path_parameters and isinstance(case.body, dict):
        is_right = all(isinstance(it, int) and it > 0 for it in (case.path_parameters["id"], case.body.get("lease_id")))
        if is_right and max(case.path_parameters["id"], case.body["lease_id"]) < 1 << 53:
            case.path_parameters["id"], case.body["lease_id"] = LEASES.pop()


@schemathesis.hook
def before_call(context, case, kwargs):
    for fields in parts(case.body):
        for name, value in fields.items():
            if name not in ("payload", "result"):
                fields[name] = written_whole(value)
        wait = fields.get("wait_ms")
        if isinstance(wait, int) and WAIT_MS < wait <= 60_000:
            fields["wait_ms"] = WAIT_MS
        # The first wait is at most the longest one; a schema cannot say so of two fields.
        base, longest = fields.get("base_ms", 1_000), fields.get("max_ms", 600_000)
        if isinstance(base, int) and isinstance(longest, int) and 0 <= longest < base <= 31_622_400_000:
            fields["base_ms"], fields["max_ms"] = longest, base
        # Weights are those of a service that is there.
        if fields.get("weights") is not None and fields.get("shard_count") is None:
            fields["shard_count"] = 4
        # The first worker of a service has said which group it is in.
        fields.pop("group", None)
    # A cursor is of a list. Lines follow those that have arrived, and skipped ones are before an offset.
    if isinstance(case.query.get("cursor"), str):
        del case.query["cursor"]
    # The output of a task that goes on has no end.
    if case.query.get("follow") in (True, "true"):
        case.query["follow"] = "false"
    if case.operation.label == "POST /v1/tasks/{id}/logs" and isinstance(case.body, dict):
        if isinstance(case.body.get("offset"), int) and case.body["offset"] >= 0:
            case.body["offset"] = 0
        elif case.body.get("offset") is None and isinstance(case.body.get("skipped"), int):
            case.body["skipped"] = min(case.body["skipped"], 0)
    use_lease(case)
