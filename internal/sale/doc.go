// Package sale stores sales: the first buyers to ask get units of an item. It owns the table sale_sales. The units are
// those of an item of internal/stock. A winner gets an order or a coupon: internal/flow implements the grab.
package sale
