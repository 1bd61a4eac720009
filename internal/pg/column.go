package pg

import "time"

// OrZero reads a column that may be null, which is then the zero value. Times are in UTC.
func OrZero[T any](p *T) (v T) {
	if p == nil {
		return v
	}
	if t, ok := any(*p).(time.Time); ok {
		return any(t.UTC()).(T)
	}
	return *p
}

// OrNull sends no array of zeros: statements take a null one for it.
func OrNull[T comparable](column []T) []T {
	var zero T
	for _, v := range column {
		if v != zero {
			return column
		}
	}
	return nil
}

// Grow makes empty columns of n rows.
func Grow[T any](n int, columns ...*[]T) {
	for _, c := range columns {
		*c = make([]T, 0, n)
	}
}
