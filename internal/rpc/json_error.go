package rpc

import (
	"bytes"
	"encoding/json"
	"fmt"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"sync"
	"unicode/utf8"

	"google.golang.org/protobuf/proto"
	"google.golang.org/protobuf/reflect/protoreflect"
	"google.golang.org/protobuf/reflect/protoregistry"

	"github.com/ledgerd/ledgerd/internal/fault"
)

// jsonProblem is an error in a JSON request: the path of a field, and the problem with it.
type jsonProblem struct{ path, problem string }

func (p jsonProblem) Error() string { return strings.TrimPrefix(p.path+": "+p.problem, ": ") }

// protojson's errors begin with a position.
var jsonPosition = regexp.MustCompile(`^(syntax error )?\(line (\d+):(\d+)\): (.*)$`)

// explainJSON converts an error of protojson to one that names the field and the form of its values.
func explainJSON(body []byte, m proto.Message, err error) error {
	text := strings.TrimPrefix(strings.ReplaceAll(err.Error(), "\u00a0", " "), "proto: ") // differs from build to build
	at := jsonPosition.FindStringSubmatch(text)
	if text == "unexpected EOF" && json.Valid(body) {
		return jsonProblem{problem: `a string has half of a surrogate pair, such as "\ud83d" alone`}
	}
	if text == "unexpected EOF" {
		return jsonProblem{problem: "the body ends before its JSON does"}
	}
	if at == nil || !json.Valid(body) {
		return jsonProblem{problem: text}
	}
	path, form := locate(body, offsetOf(body, at[2], at[3]), m.ProtoReflect().Descriptor())
	problem := at[4]
	if key := jsonKeyProblem.FindStringSubmatch(problem); key != nil {
		path, problem = keyProblem(path, key)
	} else if problem == `missing "@type" field` {
		problem = typeMissing
	} else if strings.HasPrefix(problem, "unable to resolve") {
		problem = "not a type of the API: send one such as " + typeExample
	} else if path == "" && strings.HasPrefix(problem, "unexpected token") {
		problem = "the body must be a JSON object"
	} else if form != "" {
		problem = "must be " + form
	}
	return jsonProblem{path, problem}
}

const (
	typeExample = `"type.googleapis.com/ledgerd.ledger.v1.TransferRequest"`
	typeMissing = `"@type" is missing: send the type of the request, such as ` + typeExample
)

// Errors of protojson about a key. The last group is the oneof of which another member is set.
var jsonKeyProblem = regexp.MustCompile(`^(unknown field|duplicate field|error parsing) (".*?[^\\]")(?:, ` +
	`oneof (\S+) is .*)?$`)

// keyProblem returns the path of a key below parent, and the problem with it.
func keyProblem(parent string, match []string) (path, problem string) {
	path, problem = parent, match[1]
	var key string
	if json.Unmarshal([]byte(match[2]), &key) == nil && len(key) <= maxKeyInPath {
		path = strings.TrimPrefix(parent+"."+key, ".")
	}
	if d, err := protoregistry.GlobalFiles.FindDescriptorByName(protoreflect.FullName(match[3])); err == nil {
		var members []string
		for fields, i := d.(protoreflect.OneofDescriptor).Fields(), 0; i < fields.Len(); i++ {
			members = append(members, fields.Get(i).JSONName())
		}
		problem = "send only one of " + strings.Join(members, ", ")
	}
	return path, problem
}

// maxKeyInPath bounds a caller's key in the path of a field.
const maxKeyInPath = 128

// offsetOf returns the byte offset of a line and a column. Both count from 1, columns in characters.
func offsetOf(body []byte, line, column string) int {
	n, _ := strconv.Atoi(line)
	offset := 0
	for ; n > 1; n-- {
		offset += bytes.IndexByte(body[offset:], '\n') + 1
	}
	n, _ = strconv.Atoi(column)
	for ; n > 1 && offset < len(body); n-- {
		_, size := utf8.DecodeRune(body[offset:])
		offset += size
	}
	return offset
}

// jsonLevel is an object or an array that encloses the current value of locate.
type jsonLevel struct {
	array   bool
	index   int
	key     string // of the value that follows; empty: a key follows
	message protoreflect.MessageDescriptor
	field   protoreflect.FieldDescriptor // of the values
}

// locate returns the path of the value at an offset of valid JSON, and its required form, if known.
func locate(body []byte, offset int, root protoreflect.MessageDescriptor) (path, form string) {
	d := json.NewDecoder(bytes.NewReader(body))
	d.UseNumber()
	levels := []jsonLevel{}
	for {
		start := int(d.InputOffset())
		start += len(body[start:]) - len(bytes.TrimLeft(body[start:], " \t\r\n,:"))
		t, err := d.Token()
		if err != nil || start >= offset {
			return pathOf(levels)
		}
		top := (*jsonLevel)(nil)
		if len(levels) > 0 {
			top = &levels[len(levels)-1]
		}
		switch delim, _ := t.(json.Delim); {
		case delim == '{' || delim == '[':
			levels = append(levels, inner(top, delim == '[', root))
			continue
		case delim != 0:
			levels = levels[:len(levels)-1]
			if len(levels) > 0 {
				levels[len(levels)-1].next()
			}
		case !top.array && top.key == "":
			top.named(t.(string))
		default:
			if name, ok := t.(string); ok && top.key == "@type" {
				top.message = messageNamed(name)
			}
			top.next()
		}
	}
}

// inner returns the level of an object or an array that begins inside top.
func inner(top *jsonLevel, array bool, root protoreflect.MessageDescriptor) jsonLevel {
	l := jsonLevel{array: array}
	switch {
	case top == nil:
		l.message = root
	case top.field == nil:
	case array, top.field.IsMap():
		l.field = top.field
	default:
		l.message = top.field.Message()
	}
	return l
}

func (l *jsonLevel) named(key string) {
	l.key = key
	if l.message != nil {
		fields := l.message.Fields()
		if l.field = fields.ByJSONName(key); l.field == nil {
			l.field = fields.ByTextName(key)
		}
	}
}

func (l *jsonLevel) next() {
	l.index++
	l.key = ""
}

func messageNamed(url string) protoreflect.MessageDescriptor {
	t, err := protoregistry.GlobalTypes.FindMessageByURL(url)
	if err != nil {
		return nil
	}
	return t.Descriptor()
}

func pathOf(levels []jsonLevel) (path, form string) {
	var b strings.Builder
	for _, l := range levels {
		switch {
		case l.array:
			fmt.Fprintf(&b, "[%d]", l.index)
		case l.key == "": // at a key
			return strings.TrimPrefix(b.String(), "."), ""
		default:
			b.WriteString("." + l.key)
		}
		form = l.form()
	}
	return strings.TrimPrefix(b.String(), "."), form
}

// form returns the form of the level's values.
func (l *jsonLevel) form() string {
	switch f := l.field; {
	case f == nil:
		return ""
	case l.message == nil && f.IsMap():
		return jsonForm(f.MapValue())
	case !l.array && f.IsList():
		return "an array"
	default:
		return jsonForm(f)
	}
}

// jsonForm describes how values of a field are written in JSON, with an example.
func jsonForm(f protoreflect.FieldDescriptor) string {
	switch f.Kind() {
	case protoreflect.StringKind:
		if slices.Contains(decimalFields, f.Name()) {
			return `a decimal in double quotes, such as "12.30", not a number`
		}
		return "a string in double quotes, of valid UTF-8"
	case protoreflect.BoolKind:
		return "true or false"
	case protoreflect.BytesKind:
		return "bytes in base64, in double quotes"
	case protoreflect.EnumKind:
		var names []string
		for i := range f.Enum().Values().Len() {
			if v := f.Enum().Values().Get(i); v.Number() != 0 { // 0 is UNSPECIFIED
				names = append(names, string(v.Name()))
			}
		}
		return "one of " + strings.Join(names, ", ")
	case protoreflect.MessageKind, protoreflect.GroupKind:
		switch f.Message().FullName() {
		case "google.protobuf.Duration":
			return `a number of seconds with an s behind it, such as "3600s" or "0.5s", below 10,000 years, ` +
				`with at most 9 decimals`
		case "google.protobuf.Timestamp":
			return `a time by RFC 3339, such as "2026-01-31T08:00:00Z"`
		}
		return "an object"
	}
	bits := 64
	switch f.Kind() {
	case protoreflect.Int32Kind, protoreflect.Sint32Kind, protoreflect.Uint32Kind:
		bits = 32
	}
	return fmt.Sprintf("an integer of at most %d bits, as a number or in double quotes", bits)
}

// jsonNames maps field names to their JSON names where these differ, such as biz_no to bizNo.
var jsonNames = sync.OnceValue(func() map[string]string {
	names := make(map[string]string)
	add := func(m protoreflect.MessageDescriptor) {
		for i := range m.Fields().Len() {
			if f := m.Fields().Get(i); string(f.Name()) != f.JSONName() {
				names[string(f.Name())] = f.JSONName()
			}
		}
	}
	protoregistry.GlobalTypes.RangeMessages(func(t protoreflect.MessageType) bool {
		if m := t.Descriptor(); strings.HasPrefix(string(m.FullName()), "ledgerd.") {
			add(m)
		}
		return true
	})
	return names
})

// snakeWord matches a word that may be the name of a field. It also matches texts that must stay as they are:
// quotations, and scopes, whose fields keep their names in JSON too.
var snakeWord = regexp.MustCompile(`"[^"]*"|[a-z_]+\.[a-z_*]+\([^)]*\)|[a-z][a-z0-9]*(_[a-z0-9]+)+`)

// inJSONNames returns the fault with the JSON names of fields. Values of its metadata stay as they are.
func inJSONNames(f *fault.Fault) *fault.Fault {
	names := jsonNames()
	var hide, show []string
	for key, v := range f.Metadata {
		if key != "differs" && snakeWord.MatchString(v) { // differs has names of fields
			hidden := fmt.Sprintf("\x00%d\x00", len(hide))
			hide, show = append(hide, v, hidden), append(show, hidden, v)
		}
	}
	values, back := strings.NewReplacer(hide...), strings.NewReplacer(show...)
	rename := func(text string) string {
		return back.Replace(snakeWord.ReplaceAllStringFunc(values.Replace(text), func(word string) string {
			if name, ok := names[word]; ok {
				return name
			}
			return word
		}))
	}
	renamed := *f
	renamed.Message = rename(f.Message)
	renamed.Fields = each(f.Fields, func(x fault.Field) fault.Field {
		return fault.Field{Path: rename(x.Path), Description: rename(x.Description)}
	})
	return &renamed
}
