"""A lower tier as the operator writes it: one URL, read, checked, frozen.

Purpose: ``disk:/path?size=200G`` becomes a ``TierSpec``, in which every option of its kind has a
value; what is wrong gives one line that names the key and what is valid, and never shows what may
be a secret. Must not know: engines, how a tier is run. Runs in: the main process, at start; a
porter, which is told its spec as JSON.
"""

from __future__ import annotations

import json
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from urllib.parse import unquote

from protocol.errors import ConfigError, ErrorCode
from server.core.tiers.policy import Policy
from server.sizes import MIB, invalid, parse_size
from server.tieroptions import KINDS, Value, authorities, bucket, secret_path

KEY = "l2"
MAX_TIERS = 8
MAX_URL_CHARS = 2048
CONCURRENCY = 4
MIN_BANDWIDTH_BYTES_S = 32 * MIB
"""One read is up to 32 MiB, and one that takes seconds counts as hanging."""

_MAX_CONCURRENCY = 64
_MAX_USES = 1_000_000
_COMMON = ("policy", "concurrency", "bandwidth", "name", "credentials", "keys")
_NAME = re.compile(r"(?!l1\Z)[a-z][a-z0-9_]{0,15}")
_KIND = re.compile(r"[A-Za-z][A-Za-z0-9+.-]{0,19}")
_AFTER = re.compile(r"after-([0-9]{1,7})-uses")
_ESCAPE = re.compile(r"%(?![0-9A-Fa-f]{2})")


@dataclass(frozen=True)
class TierSpec:
    """One tier.

    Attributes:
        kind: ``disk``, ``mooncake``, ``valkey`` or ``s3``.
        name: for figures and log lines, unique in a server.
        location: absolute path; ``host:port``, with commas between several; ``bucket`` or
            ``bucket/prefix``.
        policy: when chunks are written.
        uses: after how many, with ``Policy.AFTER_USES``; else 0.
        concurrency: threads of the porter.
        bandwidth_bytes_s: most bytes a second each way, 0 for no bound.
        credentials: file to read them from, or empty for the environment.
        keys: file of the keys that values are encrypted with, or empty for values as they are.
        options: of its kind, all of them.
    """

    kind: str
    name: str
    location: str
    policy: Policy = Policy.WRITE_THROUGH
    uses: int = 0
    concurrency: int = CONCURRENCY
    bandwidth_bytes_s: int = 0
    credentials: str = ""
    keys: str = ""
    options: Mapping[str, Value] = field(default_factory=dict)

    @property
    def store(self) -> str:
        """Which store it is, whatever a server calls it; one line without a secret."""
        endpoint = str(self.options.get("endpoint", "")).rstrip("/")
        return " ".join(filter(None, (f"{self.kind}://{self.location}", endpoint)))

    def text(self, option: str) -> str:
        """An option that is a text."""
        value = self.options[option]
        assert isinstance(value, str), option
        return value

    def number(self, option: str) -> int:
        """An option that is a number, sizes in bytes."""
        value = self.options[option]
        assert isinstance(value, int), option
        return value

    def flag(self, option: str) -> bool:
        """An option that is yes or no."""
        value = self.options[option]
        assert isinstance(value, bool), option
        return value


def parse(url: str) -> TierSpec:
    """Reads one tier.

    Args:
        url: as the operator wrote it.

    Returns:
        Its spec; its name is its kind unless it was named.

    Raises:
        ConfigError: INVALID_CONFIG; the line names the key, the option and what is valid.
    """
    try:
        return _parse(url.strip())
    except ConfigError as error:
        raise ConfigError(error.code, error.message, key=KEY) from None


def _parse(url: str) -> TierSpec:
    kind, colon, rest = url.partition(":")
    if not colon or kind not in KINDS or len(url) > MAX_URL_CHARS:
        # No more of it than its kind: behind that there may be a password.
        wrong = f"there is no kind {kind!r}: " if colon and _KIND.fullmatch(kind) else ""
        wrong = "it is too long: " if len(url) > MAX_URL_CHARS else wrong
        examples = ", ".join(one.example for one in KINDS.values())
        raise _wrong(f"{KEY}: {wrong}expected a URL such as {examples}")
    path, _, query = rest.partition("?")
    location = _location(kind, path)
    given = _options(kind, query)
    common = {key: given.pop(key) for key in _COMMON if key in given}
    policy, uses = _policy(kind, common.get("policy", Policy.WRITE_THROUGH.value))
    bandwidth = common.get("bandwidth", "")
    return TierSpec(
        kind=kind,
        name=_name(kind, common.get("name", kind)),
        location=location,
        policy=policy,
        uses=uses,
        concurrency=_concurrency(kind, common.get("concurrency", str(CONCURRENCY))),
        bandwidth_bytes_s=_bandwidth(kind, bandwidth) if bandwidth else 0,
        credentials=_credentials(kind, common.get("credentials", "")),
        keys=_keys(kind, common.get("keys", "")),
        options=_of_kind(kind, given),
    )


def parse_all(urls: Sequence[str]) -> tuple[TierSpec, ...]:
    """Reads all tiers of a server, the one asked first in front.

    Args:
        urls: in the operator's order.

    Returns:
        Their specs, each with a name of its own: a second disk is ``disk2``.

    Raises:
        ConfigError: INVALID_CONFIG, also for more than MAX_TIERS, and for two of one name or one
            place.
    """
    if len(urls) > MAX_TIERS:
        raise _wrong(f"{KEY}: {len(urls)} tiers; expected at most {MAX_TIERS}")
    specs: list[TierSpec] = []
    for at, url in enumerate(urls, 1):
        try:
            spec = parse(url)
        except ConfigError as error:
            if len(urls) == 1:
                raise
            text = error.message.removeprefix(f"{KEY}: ")
            raise _wrong(f"{KEY}: tier {at} of {len(urls)}: {text}") from None
        names = [one.name for one in specs]
        if spec.name in names:
            if "name=" in url:
                raise _wrong(f"{KEY}: two tiers are named {spec.name}; expected name= to differ")
            number = next(n for n in range(2, MAX_TIERS + 2) if f"{spec.kind}{n}" not in names)
            spec = TierSpec(**{**spec.__dict__, "name": f"{spec.kind}{number}"})
        if any(one.store == spec.store for one in specs):
            raise _wrong(f"{KEY}: two tiers of the kind {spec.kind} are at one place")
        if has_ledger(spec) and any(
            one.options.get("ledger") == spec.text("ledger") for one in specs
        ):
            raise _wrong(f"{KEY}: two tiers have one ledger; expected a folder for each")
        specs.append(spec)
    return tuple(specs)


def joined(urls: Sequence[str]) -> str | None:
    """What was typed, as the environment and the file have it.

    Args:
        urls: of tiers, one for each time that the option was given.

    Returns:
        All of them with spaces between, None for none.

    Raises:
        ConfigError: INVALID_CONFIG, one is empty: a variable of a script that was not set, perhaps.
    """
    if not all(url.strip() for url in urls):
        raise _wrong(f"{KEY}: expected a URL such as {KINDS['disk'].example}, and not an empty one")
    return " ".join(urls) if urls else None


def to_json(spec: TierSpec) -> bytes:
    """A spec for a porter: UTF-8."""
    fields = {**spec.__dict__, "policy": spec.policy.name, "options": dict(spec.options)}
    return json.dumps(fields).encode()


def from_json(data: bytes) -> TierSpec:
    """Reads what ``to_json`` wrote.

    Args:
        data: UTF-8.

    Raises:
        ValueError: it is none; TypeError or KeyError for fields that are none.
    """
    fields = json.loads(data)
    return TierSpec(**{**fields, "policy": Policy[fields["policy"]]})


def _location(kind: str, path: str) -> str:
    if kind == "disk":
        location = _decoded(kind, path.removeprefix("//") if path.startswith("///") else path)
        if not location.startswith("/") or location.startswith("//") or "\0" in location:
            raise _wrong(f"{KEY}: {kind}: expected an absolute path: {KINDS[kind].example}")
        return location.rstrip("/") or "/"
    if not path.startswith("//"):
        raise _wrong(f"{KEY}: {kind}: expected {KINDS[kind].example}")
    # Before anything of it is shown: who puts a password there must not find it in a log.
    if "@" in path:
        raise _wrong(
            f"{KEY}: {kind}: a user or a password has no place in the URL; expected "
            "credentials=/file, or the environment"
        )
    if kind == "s3":
        return bucket(f"{KEY}: {kind}: bucket", _decoded(kind, path[2:]))
    return authorities(f"{KEY}: {kind}: address", path[2:], is_many=kind == "valkey")


def _options(kind: str, query: str) -> dict[str, str]:
    known = (*_COMMON, *KINDS[kind].options)
    found: dict[str, str] = {}
    for item in filter(None, query.split("&")):
        key, _, value = item.partition("=")
        # The value is left out: an option that is none may be a password.
        if key not in known:
            shown = key if re.fullmatch(r"[A-Za-z0-9_-]{1,40}", key) else "?"
            raise _wrong(f"{KEY}: {kind}: {shown!r} is none of its options {', '.join(known)}")
        if key in found:
            raise _wrong(f"{KEY}: {kind}: {key} is given twice")
        value = _decoded(kind, value)
        if not value.strip():
            raise _wrong(f"{KEY}: {kind}: {key} has no value; leave it out for the default")
        found[key] = value.strip()
    return found


def _of_kind(kind: str, given: Mapping[str, str]) -> dict[str, Value]:
    values: dict[str, Value] = {}
    for key, option in KINDS[kind].options.items():
        if key in given:
            values[key] = option.read(f"{KEY}: {kind}: {key}", given[key])
        elif option.default is None:
            raise _wrong(f"{KEY}: {kind}: {key} is missing; expected {KINDS[kind].example}")
        else:
            values[key] = option.default
    return values


def _policy(kind: str, text: str) -> tuple[Policy, int]:
    after = _AFTER.fullmatch(text)
    if after is not None and 1 <= int(after[1]) <= _MAX_USES:
        return Policy.AFTER_USES, int(after[1])
    for policy in Policy:
        if text == policy.value and policy is not Policy.AFTER_USES:
            return policy, 0
    valid = ", ".join(policy.value for policy in Policy)
    raise invalid(f"{KEY}: {kind}: policy", text, f"one of {valid} (N from 1 to {_MAX_USES})")


def _name(kind: str, text: str) -> str:
    if _NAME.fullmatch(text) is None:
        valid = "at most 16 of a-z, 0-9 and _, a letter first, and not l1"
        raise invalid(f"{KEY}: {kind}: name", text, valid)
    return text


def _concurrency(kind: str, text: str) -> int:
    if not re.fullmatch(r"[0-9]{1,3}", text) or not 1 <= int(text) <= _MAX_CONCURRENCY:
        raise invalid(f"{KEY}: {kind}: concurrency", text, f"1 to {_MAX_CONCURRENCY} threads")
    return int(text)


def _bandwidth(kind: str, text: str) -> int:
    key = f"{KEY}: {kind}: bandwidth"
    bytes_s = parse_size(key, text)
    if bytes_s < MIN_BANDWIDTH_BYTES_S:
        raise invalid(key, text, "at least 32M, in bytes a second")
    return bytes_s


def _credentials(kind: str, text: str) -> str:
    if not text:
        return ""
    if not KINDS[kind].has_credentials:
        raise _wrong(f"{KEY}: {kind}: it takes no credentials; leave the option out")
    return secret_path(f"{KEY}: {kind}: credentials", text)


def _keys(kind: str, text: str) -> str:
    return secret_path(f"{KEY}: {kind}: keys", text) if text else ""


def _decoded(kind: str, text: str) -> str:
    try:
        if _ESCAPE.search(text):
            raise ValueError
        return unquote(text, errors="strict")
    except ValueError:  # UnicodeDecodeError is one
        raise _wrong(f"{KEY}: {kind}: expected %20 and its like for odd characters") from None


def _wrong(text: str) -> ConfigError:
    return ConfigError(ErrorCode.INVALID_CONFIG, text, key=KEY)


def keeps_quotas(spec: TierSpec) -> bool:
    """Whether a tier knows whose its values are, and keeps tenants' floors and limits."""
    return spec.kind == "disk"


def has_ledger(spec: TierSpec) -> bool:
    """Whether a store has a ledger: it knows whose values are, and keeps tenants' limits alone."""
    return bool(spec.options.get("ledger"))
