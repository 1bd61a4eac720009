// Package coupon stores coupons as they were issued, under codes that are unique for ever. It owns the table
// coupon_coupons. Coupons never change and are never locked: an instance of the machine "coupon" has their state and
// their owner, and is locked instead. Package internal/flow makes the moves.
package coupon
