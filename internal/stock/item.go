package stock

import (
	"cmp"
	"maps"

	"github.com/ledgerd/ledgerd/internal/commit"
)

// PutItemCommand creates an item, or describes it anew. Its answer is an Item, or a commit.Repeat of one if nothing
// changes.
type PutItemCommand struct {
	commit.Caller
	Item     string
	Label    string
	Metadata map[string]string
	Segments int    // 0: as they are, or 1
	Strategy string // empty: as it is, or Batched

	item *item
	row  *commit.Row[ItemKey, Details]
}

// Need names the item and its details.
func (c *PutItemCommand) Need(tx *Tx) {
	c.item = tx.item(c.Tenant, c.Item, c.Segments)
	c.row = tx.details.Want(c.item.ItemKey)
	tx.puts = true
}

// Apply creates or describes the item. Returns fault SEGMENTS_TOO_FEW.
func (c *PutItemCommand) Apply(tx *Tx) (any, error) {
	first := c.item.rows[0]
	if first.found {
		if err := c.item.ready(); err != nil {
			return nil, err
		}
	}
	had := int(first.segments) // 0: there is no item
	segments := max(1, had, c.Segments)
	if c.Segments > 0 && c.Segments < had {
		return nil, SegmentsTooFew.New("the item %s has %d segments already, and segments cannot be removed",
			c.Item, had).With("item", c.Item).
			With("segments", had)
	}
	strategy := cmp.Or(c.Strategy, first.strategy, Batched)
	old := c.row.Value
	if had == segments && strategy == first.strategy && c.Label == old.Label && maps.Equal(c.Metadata, old.Metadata) {
		return commit.Repeat{First: c.answer()}, nil
	}
	if had != segments || strategy != first.strategy {
		for _, s := range c.item.rows[:segments] {
			tx.change(s).segments, s.strategy = int16(segments), strategy
			if !s.found {
				s.found, s.fresh = true, true
			}
		}
		tx.level(c.item)
	}
	d := tx.details.Change(c.row)
	*d = Details{Label: c.Label, Metadata: c.Metadata, CreatedAt: old.CreatedAt, ChangedAt: tx.Now, caller: c.Caller}
	if had == 0 {
		d.CreatedAt = tx.Now
	}
	return c.answer(), nil
}

func (c *PutItemCommand) answer() Item {
	first := c.item.rows[0]
	return Item{c.item.ItemKey, c.row.Value, c.item.counts(), int(first.segments), first.strategy}
}
