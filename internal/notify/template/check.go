package template

import (
	"fmt"
	"strings"
	"text/template/parse"
)

// Limits of a template. maxSteps limits the time to render one message; a step takes some tenths of a microsecond.
const (
	maxSteps   = 50_000
	maxNesting = 16
	maxRanges  = 2 // nested; html/template checks each body twice, so the cost doubles with each level
)

// staticType is the type of a value, known before rendering.
type staticType struct {
	kind      Kind // "": not printable, such as the root of all variables
	list      bool
	items     int
	fields    []Variable
	multiline bool // may contain line breaks
}

func typeOf(v *Variable) staticType {
	return staticType{kind: v.Kind, list: v.List, items: v.items(), fields: v.Fields, multiline: v.Multiline}
}

func (s staticType) String() string {
	switch {
	case s.list:
		return "a list"
	case s.kind == "":
		return "everything"
	}
	return string(s.kind)
}

// checker type-checks a template before its first execution, and bounds the number of steps. It refuses everything that
// it does not know. So a template calls no methods, reads only declared variables, and terminates.
type checker struct {
	root  staticType
	vars  []scoped
	lines bool // values with line breaks may be printed
	steps int
	times int // upper bound of executions of the present node
	loops int
	depth int
}

type scoped struct {
	name       string
	staticType staticType
}

type complaint struct{ text string }

func (c complaint) Error() string { return c.text }

func refuse(format string, args ...any) { panic(complaint{fmt.Sprintf(format, args...)}) }

// checkText returns why a template is refused, or "".
func checkText(tree *parse.Tree, vars []Variable, lines bool) (problem string) {
	c := checker{root: staticType{fields: vars}, lines: lines, times: 1}
	defer func() {
		if r := recover(); r != nil {
			p, ok := r.(complaint)
			if !ok {
				panic(r)
			}
			problem = p.text
		}
	}()
	c.list(tree.Root, c.root)
	return ""
}

func (c *checker) list(l *parse.ListNode, dot staticType) {
	if l == nil {
		return
	}
	if c.depth++; c.depth > maxNesting {
		refuse("is nested too deeply")
	}
	scope := len(c.vars)
	for _, n := range l.Nodes {
		c.node(n, dot)
	}
	c.vars = c.vars[:scope]
	c.depth--
}

func (c *checker) step() {
	if c.steps += c.times; c.steps > maxSteps {
		refuse("would take too many steps to render: use fewer or shorter lists")
	}
}

func (c *checker) node(n parse.Node, dot staticType) {
	c.step()
	switch n := n.(type) {
	case *parse.TextNode:
		if strings.Contains(strings.ToLower(string(n.Text)), "<script") {
			refuse("must not contain <script, which mail programs do not run")
		}
		if !c.lines && strings.ContainsFunc(string(n.Text), breaks) {
			refuse("must not contain a line break")
		}
	case *parse.CommentNode, *parse.BreakNode, *parse.ContinueNode:
	case *parse.ActionNode:
		s := c.pipe(n.Pipe, dot)
		if len(n.Pipe.Decl) == 0 {
			c.show(s, n)
		}
	case *parse.IfNode:
		scope := len(c.vars)
		c.pipe(n.Pipe, dot)
		c.list(n.List, dot)
		c.list(n.ElseList, dot)
		c.vars = c.vars[:scope]
	case *parse.WithNode:
		scope := len(c.vars)
		s := c.pipe(n.Pipe, dot)
		c.list(n.List, s)
		c.list(n.ElseList, dot)
		c.vars = c.vars[:scope]
	case *parse.RangeNode:
		c.each(n, dot)
	default:
		refuse("contains %s, which templates do not support", n)
	}
}

func (c *checker) show(s staticType, n parse.Node) {
	switch {
	case s.list || s.kind == "" || s.kind == Record:
		refuse("%s shows %s: name one of its fields, or range over it", n, s)
	case s.multiline && !c.lines:
		refuse("%s may contain line breaks, which are not allowed here", n)
	}
}

func (c *checker) each(n *parse.RangeNode, dot staticType) {
	pipe := n.Pipe
	if len(pipe.Cmds) != 1 || pipe.IsAssign {
		refuse("%s: range requires one list", pipe)
	}
	over := c.command(pipe.Cmds[0], dot, nil)
	if !over.list {
		refuse("%s: range requires one list", pipe)
	}
	if c.loops++; c.loops > maxRanges {
		refuse("has too many nested ranges")
	}
	item := over
	item.list = false
	scope, times := len(c.vars), c.times
	switch len(pipe.Decl) {
	case 1:
		c.declare(pipe.Decl[0], item)
	case 2:
		c.declare(pipe.Decl[0], staticType{kind: Integer})
		c.declare(pipe.Decl[1], item)
	}
	c.times *= over.items
	c.list(n.List, item)
	c.times, c.vars = times, c.vars[:scope]
	c.loops--
	c.list(n.ElseList, dot)
}

func (c *checker) declare(v *parse.VariableNode, s staticType) {
	c.vars = append(c.vars, scoped{v.Ident[0], s})
}

func (c *checker) pipe(p *parse.PipeNode, dot staticType) staticType {
	if p.IsAssign {
		refuse("%s: a variable cannot be assigned again", p)
	}
	if c.depth++; c.depth > maxNesting {
		refuse("is nested too deeply")
	}
	var s staticType
	var last *staticType
	for _, cmd := range p.Cmds {
		s = c.command(cmd, dot, last)
		last = &s
	}
	c.depth--
	if len(p.Decl) > 1 {
		refuse("%s: only range can declare two variables", p)
	}
	for _, v := range p.Decl {
		c.declare(v, s)
	}
	return s
}

// command checks a value, or a function call. A piped value is its last argument.
func (c *checker) command(cmd *parse.CommandNode, dot staticType, last *staticType) staticType {
	c.step()
	if id, ok := cmd.Args[0].(*parse.IdentifierNode); ok {
		f, ok := functions[id.Ident]
		if !ok {
			refuse("%s is not a function of templates", id.Ident)
		}
		var args []staticType
		for _, a := range cmd.Args[1:] {
			args = append(args, c.value(a, dot))
		}
		if last != nil {
			args = append(args, *last)
		}
		s, problem := f.staticType(args)
		if problem != "" {
			refuse("%s: %s", cmd, problem)
		}
		return s
	}
	if len(cmd.Args) > 1 || last != nil {
		refuse("%s: only functions take arguments", cmd)
	}
	return c.value(cmd.Args[0], dot)
}

func (c *checker) value(n parse.Node, dot staticType) staticType {
	switch n := n.(type) {
	case *parse.DotNode:
		return dot
	case *parse.FieldNode:
		return c.field(dot, n.Ident, n)
	case *parse.VariableNode:
		if n.Ident[0] == "$" {
			return c.field(c.root, n.Ident[1:], n)
		}
		for i := len(c.vars) - 1; i >= 0; i-- {
			if c.vars[i].name == n.Ident[0] {
				return c.field(c.vars[i].staticType, n.Ident[1:], n)
			}
		}
		refuse("%s is not declared", n)
	case *parse.PipeNode:
		if len(n.Decl) > 0 {
			refuse("%s: a variable cannot be declared here", n)
		}
		return c.pipe(n, dot)
	case *parse.StringNode:
		return staticType{kind: String, multiline: strings.ContainsFunc(n.Text, breaks)}
	case *parse.BoolNode:
		return staticType{kind: Bool}
	case *parse.NumberNode:
		if n.IsInt && !strings.HasPrefix(n.Text, "'") {
			return staticType{kind: Integer}
		}
		refuse("%s: only whole numbers are supported", n)
	case *parse.IdentifierNode: // a call without arguments: no function has none
		refuse("%s is not a value", n)
	default:
		refuse("%s is not supported in templates", n)
	}
	return staticType{}
}

func (c *checker) field(s staticType, path []string, n parse.Node) staticType {
	for _, name := range path {
		if s.list || s.kind != "" && s.kind != Record {
			refuse("%s: %s has no field %s", n, s, name)
		}
		found := false
		for i := range s.fields {
			if v := &s.fields[i]; v.Name == name {
				s, found = typeOf(v), true
				break
			}
		}
		if !found {
			refuse("%s is not a declared variable", n)
		}
	}
	return s
}
