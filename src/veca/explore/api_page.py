"""The page that describes the API: FastAPI's own pages load scripts from a CDN."""

from typing import Any

from veca.analysis.page import table, text

API_PAGE = """<!doctype html>
<html lang="en">
<head>
<meta charset="utf-8">
<meta name="viewport" content="width=device-width, initial-scale=1">
<title>{title}: the API</title>
<link rel="icon" href="/icon.svg">
<link rel="stylesheet" href="/page.css">
</head>
<body>
<main>
<h1>The JSON API of {title}</h1>
<p>Machine-readable: <a href="/openapi.json">openapi.json</a>. Back to <a href="/">the page</a>.</p>
<pre>curl --data-binary @photo.jpg http://127.0.0.1:8765/api/pictures
curl -o features.npy "http://127.0.0.1:8765/api/pictures/PICTURE/features.npy?budget=16"
curl -o objects.png "http://127.0.0.1:8765/api/pictures/PICTURE/map.png?view=objects"
curl "http://127.0.0.1:8765/api/pictures/PICTURE/cost?budget=16"</pre>
<p>Errors are JSON with a sentence in <code>detail</code>.</p>
{body}
</main>
</body>
</html>
"""


def api_page(openapi: dict[str, Any]) -> bytes:
    """The description of the API as a page that needs no network."""
    parts = []
    for path, methods in openapi["paths"].items():
        for method, operation in methods.items():
            rows = [
                (f"<code>{text(given['name'])}</code>", text(_kind(given)),
                 text(given.get("description", "")))
                for given in operation.get("parameters", [])
            ]  # fmt: skip
            if "requestBody" in operation:
                rows.append(("body", "file", text(operation["requestBody"]["description"])))
            answer = next(iter(operation["responses"]["200"].get("content", {"": None})))
            parts += [
                f"<h2><code>{method.upper()} {text(path)}</code></h2>",
                f"<p>{text(operation.get('description') or operation['summary'])}</p>",
                f"<p class=quiet>Answers {text(answer)}</p>",
                f'<div class="words">{table(("parameter", "values", "meaning"), rows)}</div>'
                * bool(rows),
            ]
    return API_PAGE.format(title=text(openapi["info"]["title"]), body="\n".join(parts)).encode()


def _kind(parameter: dict[str, Any]) -> str:
    """The values that a parameter may have."""
    schema = parameter["schema"]
    schema = next((one for one in schema.get("anyOf", []) if one.get("type") != "null"), schema)
    if "enum" in schema:
        return ", ".join(schema["enum"])
    low = schema.get("minimum", schema.get("exclusiveMinimum"))
    kind = f"{schema['type']} {low}..{schema.get('maximum', '')}" if low is not None else "text"
    default = parameter["schema"].get("default")
    return kind if default is None else f"{kind}, default {default}"
