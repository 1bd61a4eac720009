// Package order keeps what was ordered, under numbers that are unique for ever. It owns the table order_orders. Orders
// never change and are never locked: their state is that of a machine's instance, which is locked instead. What an
// order reserves, holds and pays is the work of internal/flow.
package order
