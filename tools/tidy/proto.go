package main

import (
	"bytes"
	"fmt"
	"path"
	"regexp"
	"strings"
)

// protoField matches the first line of a field or of an enum value, as buf formats it. Options have no number after
// their "=", or no name before it.
var protoField = regexp.MustCompile(`^\s+(?:(?:optional |repeated )?(?:map<[^>]+>|[\w.]+) )?(\w+) = \d+(?: \[|;)`)

// protoComments reports fields and enum values whose comment is missing, or repeats only their name: these comments are
// the reference of the API. The zero value of an enum needs no comment if it is unspecified.
func protoComments(rel string, text []byte) []finding {
	if path.Ext(rel) != ".proto" {
		return nil
	}
	var found []finding
	line := 0
	var comment []string // directly above the line
	for text := range bytes.Lines(text) {
		line++
		if words, ok := bytes.CutPrefix(bytes.TrimSpace(text), []byte("//")); ok {
			comment = append(comment, string(bytes.TrimSpace(words)))
			continue
		}
		if m := protoField.FindSubmatch(text); m != nil && !strings.HasSuffix(string(m[1]), "_UNSPECIFIED") {
			name := string(m[1])
			said := strings.Join(comment, " ")
			if bare := strings.TrimSuffix(strings.ToLower(said), "."); bare == "" ||
				bare == strings.ReplaceAll(strings.ToLower(name), "_", " ") {
				found = append(found, finding{file: rel, line: line, rule: "field-comment",
					text: fmt.Sprintf("the comment of %s says no more than its name", name)})
			}
		}
		comment = nil
	}
	return found
}
