package stock

// Look reads an item for a command of another domain, which keeps it between its attempts.
type Look struct {
	await await
	item  *item
}

// Need names the item, with all of its segments.
func (l *Look) Need(tx *Tx, tenant int32, name string) { l.item = l.await.of(tx.item(tenant, name, 1)) }

// Exists returns fault ITEM_NOT_FOUND if there is no such item.
func (l *Look) Exists() error { return l.item.ready() }

// Empty reports whether no unit can be reserved or sold. Returns fault ITEM_NOT_FOUND.
func (l *Look) Empty() (bool, error) {
	if err := l.item.ready(); err != nil {
		return false, err
	}
	return l.item.lacks(1, &l.await)
}
