// Package coupon keeps coupons as they were issued, under codes that are unique for ever. It owns the table
// coupon_coupons. Coupons never change and are never locked: their state and their owner are those of an instance of
// the machine "coupon", which is locked instead. The moves are the work of internal/flow.
package coupon
