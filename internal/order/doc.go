// Package order keeps what was ordered, under numbers that are unique for ever. It owns the table order_orders. Orders
// never change and are never locked: their state is that of a machine's instance, which is locked instead. Package
// internal/flow reserves, holds and pays for orders.
package order
