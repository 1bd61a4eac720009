package ids

// textLength is how many characters of 5 bits an ID takes.
const textLength = 13

// digits are Crockford's: no I, L, O, U, and in the order of ASCII, so that texts sort as the numbers do.
const digits = "0123456789ABCDEFGHJKMNPQRSTVWXYZ"

// values are the digits' values, also in lower case and of the letters that look like one; -1 of all else.
var values = func() (v [256]int8) {
	for i := range v {
		v[i] = -1
	}
	for i := range len(digits) {
		v[digits[i]] = int8(i)
		v[digits[i]|0x20] = int8(i) // of a digit the digit itself
	}
	for like, c := range map[byte]int8{'I': 1, 'L': 1, 'O': 0} {
		v[like], v[like|0x20] = c, c
	}
	return v
}()

// Text is the id in 13 characters, 0-9 and A-Z without I, L, O and U, which sort as the ids do.
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

// parseText reads what Text writes, in upper or lower case, and with I and L for 1 and O for 0.
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
