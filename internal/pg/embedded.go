package pg

import "embed"

// Embedded returns the text of an embedded statement, sql/NAME.sql. It panics if there is none: names are constants.
func Embedded(files embed.FS, name string) string {
	text, err := files.ReadFile("sql/" + name + ".sql")
	if err != nil {
		panic(err)
	}
	return string(text)
}
