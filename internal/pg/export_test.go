package pg

func (encodeArray[T]) direct() {}
