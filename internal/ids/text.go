package ids

// textLength is the number of 5-bit characters of an ID.
const textLength = 13

// digits are Crockford's base 32, without I, L, O and U. They are in ASCII order, so texts sort like numbers.
const digits = "0123456789ABCDEFGHJKMNPQRSTVWXYZ"

// values maps characters to digits, in both cases and including look-alike letters; -1: invalid.
var values = func() (v [256]int8) {
	for i := range v {
		v[i] = -1
	}
	for i := range len(digits) {
		v[digits[i]] = int8(i)
		v[digits[i]|0x20] = int8(i) // a no-op for decimal digits
	}
	for like, c := range map[byte]int8{'I': 1, 'L': 1, 'O': 0} {
		v[like], v[like|0x20] = c, c
	}
	return v
}()

// Text is the id in 13 characters of Crockford's base 32, which sort like the ids.
func (id ID) Text() string {
	var b [textLength]byte
	return string(id.appendText(b[:0]))
}

func (id ID) appendText(b []byte) []byte {
	for shift := 5 * (textLength - 1); shift >= 0; shift -= 5 {
		b = append(b, digits[id>>shift&31])
	}
	return b
}

// parseText parses the output of Text, in either case, with I and L read as 1 and O as 0.
func parseText(s string) (id ID, ok bool) {
	if len(s) != textLength || values[s[0]] > 7 { // 65 bits, of which an id has 63
		return 0, false
	}
	for i := range len(s) {
		v := values[s[i]]
		if v < 0 {
			return 0, false
		}
		id = id<<5 | ID(v)
	}
	return id, true
}
