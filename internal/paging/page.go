package paging

// Sizes of pages.
const (
	defaultSize = 100
	maxSize     = 1_000
)

// Size returns the size of a page, given the one that the caller asked for: 0 means the default, and there is a
// maximum.
func Size(wanted int) int {
	if wanted <= 0 {
		return defaultSize
	}
	return min(wanted, maxSize)
}

// Read reads one page: fetch returns at most count rows. If there are more rows than the page holds, next is the token
// of the last row on the page.
func Read[R, V any](size int, fetch func(count int32) ([]R, error), token func(*R) string,
	convert func(*R) (V, error)) (list []V, next string, err error) {
	size = Size(size)
	rows, err := fetch(int32(size) + 1)
	if err != nil {
		return nil, "", err
	}
	if len(rows) > size {
		rows = rows[:size]
		next = token(&rows[size-1])
	}
	for i := range rows {
		v, err := convert(&rows[i])
		if err != nil {
			return nil, "", err
		}
		list = append(list, v)
	}
	return list, next, nil
}

// ReadNumbered reads one page of a list in the order of a number. The first page begins after first.
func ReadNumbered[R, V any](l List, size int, token string, first int64,
	fetch func(after int64, count int32) ([]R, error), number func(*R) int64,
	convert func(*R) (V, error)) ([]V, string, error) {
	after, err := l.AfterNumber(token, first)
	if err != nil {
		return nil, "", err
	}
	return Read(size, func(count int32) ([]R, error) { return fetch(after, count) },
		func(r *R) string { return l.TokenNumber(number(r)) }, convert)
}

// ReadNamed reads one page of a list in the order of a name.
func ReadNamed[R, V any](l List, size int, token string, fetch func(after string, count int32) ([]R, error),
	name func(*R) string, convert func(*R) (V, error)) ([]V, string, error) {
	after, err := l.After(token, 1)
	if err != nil {
		return nil, "", err
	}
	if after == nil {
		after = []string{""}
	}
	return Read(size, func(count int32) ([]R, error) { return fetch(after[0], count) },
		func(r *R) string { return l.Token(name(r)) }, convert)
}
