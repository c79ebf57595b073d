"""A receiver of GitHub's push webhooks: one job per commit, in the lane of its author.

Give the webhook the address /hooks/github, the content type application/json, and the secret that GITHUB_WEBHOOK_SECRET
holds here. Until that variable is set, the path answers 503 and everything else works.
"""

import msgspec

from echofn import Context, Request, queue, webhook


class Person(msgspec.Struct):
    name: str
    email: str = ""
    username: str = ""


class Commit(msgspec.Struct):
    id: str
    message: str
    author: Person
    added: list[str] = []
    removed: list[str] = []
    modified: list[str] = []


class Repository(msgspec.Struct):
    full_name: str


class Push(msgspec.Struct):
    ref: str
    repository: Repository
    commits: list[Commit] = []


class Review(msgspec.Struct):
    repository: str
    author: str
    commit: Commit


@webhook("/hooks/github", verify="github", secret="GITHUB_WEBHOOK_SECRET", lane="json.repository.full_name")
def on_push(request: Request, ctx: Context) -> int:
    """Enqueue a review of every commit that was pushed."""
    if request.headers.get("x-github-event") != "push":
        return 0  # a ping, or an event that was ticked by mistake
    push = msgspec.convert(request.json(), Push)
    for commit in push.commits:
        author = commit.author.username or commit.author.name
        where = push.repository.full_name  # a fork's commits have the ids of their origin
        ctx.enqueue(review, Review(where, author, commit), unique=f"{where}@{commit.id}")
    ctx.log.info("%s: %d commits on %s", push.repository.full_name, len(push.commits), push.ref)
    return len(push.commits)


@queue(lane="author", timeout="30s")
def review(payload: Review) -> str:
    """Look at one commit. An author who pushes a thousand delays only their own."""
    commit = payload.commit
    title = commit.message.partition("\n")[0]
    touched = len(commit.added) + len(commit.removed) + len(commit.modified)
    return f"{payload.repository}@{commit.id[:7]} by {payload.author}: {title} ({touched} files)"
