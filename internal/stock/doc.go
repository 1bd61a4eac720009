// Package stock counts items that are never oversold: reservations, which are sold, cancelled or expire; direct sales;
// and changes of stock. It owns the tables stock_*.
//
// The counts of an item are in one row, or in several segments, which a batch locks, or takes over, all together. They
// guard the item's reservations, changes and details, which have no locks of their own. Exception: due reservations are
// locked, with SKIP LOCKED, before they expire.
package stock
