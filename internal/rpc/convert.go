package rpc

// each converts the elements of a list. An empty list becomes nil.
func each[A, B any](list []A, convert func(A) B) []B {
	return eachOf(list, func(x *A) B { return convert(*x) })
}

// eachOf is each for values that are converted through a pointer.
func eachOf[A, B any](list []A, convert func(*A) B) []B {
	if len(list) == 0 {
		return nil
	}
	converted := make([]B, len(list))
	for i := range list {
		converted[i] = convert(&list[i])
	}
	return converted
}

// inverse maps the values of a table to its keys.
func inverse[K, V comparable](m map[K]V) map[V]K {
	n := make(map[V]K, len(m))
	for k, v := range m {
		n[v] = k
	}
	return n
}
