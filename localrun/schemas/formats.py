"""What the formats of strings look like here, and which of them are held to. Pure.

Each is a part of what its standard allows: what validators agree on, of a length that ends. The
engine's own expressions have no such end, and allow 29 February in every year.
Source: RFC 3339, 3986, 5321, 6901; what jsonschema, ajv-formats, pydantic and Zod accept.
"""

# Digits behind the seconds, and of each part of a duration.
MAX_FRACTION_DIGITS = 9
MAX_DURATION_DIGITS = 6

# Characters of a URI's path; with host, query and fragment it has 2,000 at most.
MAX_PATH = 1200

_LEAP = "(?:0[48]|[2468][048]|[13579][26])"
_DATE = (
    "(?:(?:[1-9][0-9]{3}|0[1-9][0-9]{2}|00[1-9][0-9]|000[1-9])-(?:"
    "(?:0[13578]|1[02])-(?:0[1-9]|[12][0-9]|3[01])|(?:0[469]|11)-(?:0[1-9]|[12][0-9]|30)|"
    f"02-(?:0[1-9]|1[0-9]|2[0-8]))|(?:[0-9]{{2}}{_LEAP}|{_LEAP}00)-02-29)"
)
_TIME = (
    f"(?:[01][0-9]|2[0-3]):[0-5][0-9]:[0-5][0-9](?:[.][0-9]{{1,{MAX_FRACTION_DIGITS}}})?"
    "(?:Z|[+-](?:(?:0[0-9]|1[0-3]):[0-5][0-9]|14:00))"
)

_N = f"[0-9]{{1,{MAX_DURATION_DIGITS}}}"
_CLOCK = f"T(?:{_N}H(?:{_N}M(?:{_N}S)?)?|{_N}M(?:{_N}S)?|{_N}S)"
_CALENDAR = f"(?:{_N}Y(?:{_N}M(?:{_N}D)?)?|{_N}M(?:{_N}D)?|{_N}D)"
_DURATION = f"P(?:{_N}W|{_CALENDAR}(?:{_CLOCK})?|{_CLOCK})"

_LABEL = "[A-Za-z0-9]{1,20}(?:-[A-Za-z0-9]{1,20}){0,2}"
_HOST = f"(?:{_LABEL}[.]){{0,3}}[A-Za-z][A-Za-z0-9]{{0,20}}(?:-[A-Za-z0-9]{{1,20}}){{0,2}}"
_WORD = "[A-Za-z0-9_+-]"
_EMAIL = f"{_WORD}{{1,30}}(?:[.]{_WORD}{{1,16}}){{0,2}}@(?:{_LABEL}[.]){{1,3}}[A-Za-z]{{2,10}}"

_BYTE = "(?:25[0-5]|2[0-4][0-9]|1[0-9]{2}|[1-9]?[0-9])"
_IN_PATH = "(?:[A-Za-z0-9._~!$&'()*+,;=:@/-]|%[0-9A-Fa-f]{2})"
_BEHIND_PATH = f"(?:[?]{_IN_PATH}{{0,300}})?(?:#{_IN_PATH}{{0,60}})?"
_URI = (
    f"(?:[a-z][a-z0-9+]{{1,15}}://(?:{_HOST}|{_BYTE}(?:[.]{_BYTE}){{3}})(?::[1-9][0-9]{{0,3}})?"
    f"(?:/{_IN_PATH}{{0,{MAX_PATH}}})?{_BEHIND_PATH}|"
    f"(?:mailto|tel|urn|data):[A-Za-z0-9+]{_IN_PATH}{{1,{MAX_PATH}}}{_BEHIND_PATH})"
)
_SEGMENT = "[A-Za-z0-9._~-]{1,64}"
_RELATIVE = f"/?(?:{_SEGMENT}/){{0,12}}{_SEGMENT}{_BEHIND_PATH}"
_POINTER = "(?:/(?:[^/~]|~[01]){0,100}){0,20}"

# name → a regular expression for the whole string
HELD = {
    "date": _DATE,
    "time": _TIME,
    "date-time": f"{_DATE}T{_TIME}",
    "duration": _DURATION,
    "email": _EMAIL,
    "idn-email": _EMAIL,
    "hostname": _HOST,
    "idn-hostname": _HOST,
    "uri": _URI,
    "url": _URI,
    "iri": _URI,
    "uri-reference": f"(?:{_URI}|{_RELATIVE})",
    "iri-reference": f"(?:{_URI}|{_RELATIVE})",
    "json-pointer": _POINTER,
    "relative-json-pointer": f"(?:0|[1-9][0-9]{{0,5}})(?:#|{_POINTER})",
}

# The engine's own are as good.
OF_ENGINE = frozenset(("ipv4", "ipv6", "uuid"))

# Validators check it, and no grammar can.
BEYOND = frozenset(("regex",))

# Patterns that a generator writes beside a format, and that match all that the format has here:
# they look around, which is not supported, and there is no need for them.
WIDER = {
    "email": frozenset(
        {
            r"^(?!\.)(?!.*\.\.)([A-Za-z0-9_'+\-\.]*)[A-Za-z0-9_+-]"
            r"@([A-Za-z0-9][A-Za-z0-9\-]*\.)+[A-Za-z]{2,}$",
        }
    ),
    "duration": frozenset(
        {
            r"^P(?:(\d+W)|(?!.*W)(?=\d|T\d)(\d+Y)?(\d+M)?(\d+D)?"
            r"(T(?=\d)(\d+H)?(\d+M)?(\d+([.,]\d+)?S)?)?)$",
        }
    ),
}  # Source: Zod 4, `regexes.ts`
