// Package stock counts items that are never oversold: reservations that end by a sale, a cancellation or their time,
// direct sales, and changes of what is stocked. It owns the tables stock_*.
//
// The counts of an item are in one row, or in several segments, which a batch locks, or takes over, all together. They
// guard the item's reservations, changes and details, which have no locks of their own, but for due reservations: these
// are locked before they expire, without waiting.
package stock
