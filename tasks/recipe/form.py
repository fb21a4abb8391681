"""The base of every recipe section: frozen, closed, and laid out in declaration order in the UI form."""

from typing import Any

from pydantic import BaseModel, ConfigDict


def _in_declaration_order(schema: dict[str, Any]) -> None:
    for position, field in enumerate(schema.get("properties", {}).values()):
        field["position"] = position


class Section(BaseModel):
    """A frozen group of fields; an unknown key is an error."""

    model_config = ConfigDict(
        frozen=True,
        extra="forbid",
        use_attribute_docstrings=True,
        json_schema_extra=_in_declaration_order,
    )
