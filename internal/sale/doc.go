// Package sale keeps sales: the first buyers to ask get units of an item. It owns the table sale_sales. Units are
// those of an item of internal/stock, and what a winner gets is an order or a coupon: the grab is the work of
// internal/flow.
package sale
