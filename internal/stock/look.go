package stock

// Look reads an item for a command of another domain.
type Look struct{ item *item }

// Look declares an item to read, with all of its segments.
func (tx *Tx) Look(tenant int32, name string) *Look { return &Look{tx.item(tenant, name, 1)} }

// Available returns the number of units that can be reserved or sold. Returns fault ITEM_NOT_FOUND.
func (l *Look) Available() (int64, error) {
	if err := l.item.ready(); err != nil {
		return 0, err
	}
	return l.item.counts().Available, nil
}
