// Package order stores orders, under numbers that are unique for ever. It owns the table order_orders. Its rows never
// change and are never locked: the state of an order is that of a machine's instance, which is locked instead. Package
// internal/flow reserves, holds and pays for orders.
package order
