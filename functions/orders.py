"""A CSV import that fans out: one job a row, in the lane of its customer, so that a big customer delays nobody else."""

import csv
import io

import msgspec

from echofn import Context, Fail, queue


class Order(msgspec.Struct):
    customer: str
    sku: str
    quantity: int


@queue(timeout="30s")
def import_csv(payload: str, ctx: Context) -> int:
    """Read `customer,sku,quantity` lines and enqueue one `orders.pack` a row: all rows become jobs, or none does."""
    rows = list(csv.DictReader(io.StringIO(payload)))
    if not rows or set(rows[0]) != {"customer", "sku", "quantity"}:
        raise Fail("expected a header customer,sku,quantity and at least one row")
    for number, row in enumerate(rows, 1):
        try:
            order = Order(row["customer"], row["sku"], int(row["quantity"]))
        except (TypeError, ValueError) as error:
            raise Fail(f"row {number}: {error}") from error
        ctx.enqueue(pack, order)
        ctx.progress(number / len(rows), f"row {number} of {len(rows)}")
    return len(rows)


@queue(lane="customer", retries=5)
def pack(payload: Order) -> str:
    """Pack one order."""
    if payload.quantity < 1:
        raise Fail(f"expected a quantity of 1 or more, got {payload.quantity}")
    return f"{payload.quantity} x {payload.sku} packed for {payload.customer}"
