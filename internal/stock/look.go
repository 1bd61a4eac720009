package stock

// Look reads an item for a command of another domain.
type Look struct{ item *item }

// Look names an item to read, with all of its segments.
func (tx *Tx) Look(tenant int32, name string) *Look { return &Look{tx.item(tenant, name, 1)} }

// Exists returns fault ITEM_NOT_FOUND if there is no such item.
func (l *Look) Exists() error { return l.item.ready() }

// Empty reports whether no unit can be reserved or sold. Returns fault ITEM_NOT_FOUND.
func (l *Look) Empty() (bool, error) {
	if err := l.item.ready(); err != nil {
		return false, err
	}
	return l.item.lacks(1)
}
