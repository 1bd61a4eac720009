package main

import "strings"

// layer is the height of a package. A package may import its own layer and lower ones.
type layer int

const (
	ground  layer = iota // pg, fault, embedded SQL: import no other layer
	engine               // commit, lock, audit: no domain words
	domain               // ledger, order, stock, …: must not import each other
	flow                 // operations across domains
	rpc                  // thin adapters
	server               // wiring
	command              // main packages
)

var layerNames = [...]string{"ground", "engine", "domain", "flow", "rpc", "server", "command"}

func (l layer) String() string { return layerNames[l] }

// layers assigns a layer to a directory and its subdirectories; the longest entry wins. Directories below internal/
// without an entry are domains. A small package that several domains need (ids, money) belongs to the ground: list it.
var layers = map[string]layer{
	"":                  command,
	"db":                ground,
	"gen":               ground, // protoUsers has its own rule
	"internal":          domain,
	"internal/amount":   ground,
	"internal/pg":       ground,
	"internal/fault":    ground,
	"internal/compress": ground,
	"internal/paging":   ground,
	"internal/hint":     ground,
	"internal/httpsend": ground,
	"internal/httpbody": ground,
	"internal/settings": ground,
	"internal/gateway":  ground,
	"internal/commit":   engine,
	"internal/audit":    engine,
	"internal/clean":    engine,
	"internal/lock":     engine,
	"internal/ids":      engine,
	"internal/flow":     flow,
	"internal/rpc":      rpc,
	"internal/server":   server,
	"internal/bench":    server,
	"internal/localpg":  server,
	"internal/pgtest":   server,
	"internal/verify":   server,
	"internal/importer": server,
	"internal/crash":    server,
	"internal/refdoc":   command,
	"client":            server,
	"cmd":               command,

	"internal/consumer": server,

	// The interface of senders. It names neither the database nor a domain.
	"internal/notify/send":   ground,
	"internal/notify/secret": ground,
}

// protoUsers may import generated protobuf code. All lower packages use Go types, so that the wire format can
// change independently of the business rules.
var protoUsers = []string{
	"gen", "internal/rpc", "internal/server", "client", "cmd", "examples",
	"internal/bench", "internal/importer",
}

// layers checks the direction of imports within the module. Tests are exempt: they may combine any packages.
func (s *sourceFile) layers() []finding {
	if s.test || isTestPackage(s.file.Name.Name) {
		return nil
	}
	var found []finding
	from := s.dir()
	fromLayer := layerOf(from)
	if s.file.Name.Name == "main" {
		fromLayer = command
	}
	for _, imp := range s.file.Imports {
		to, ours := strings.CutPrefix(importPath(imp), s.module+"/")
		if !ours {
			continue
		}
		toLayer := layerOf(to)
		switch {
		case within(to, "gen") && !isProtoUser(from):
			found = append(found, s.finding(imp.Pos(), "proto-import",
				"%s imports generated protobuf %s: only %s may", from, to, strings.Join(protoUsers, ", ")))
		case toLayer > fromLayer:
			found = append(found, s.finding(imp.Pos(), "import-direction",
				"%s (%s) imports %s (%s): imports run %s", from, fromLayer, to, toLayer, direction()))
		case fromLayer == domain && toLayer == domain && folder(from) != folder(to):
			found = append(found, s.finding(imp.Pos(), "domain-import",
				"%s imports %s: an operation across two domains is a flow; if %s is not a domain, "+
					"give it a layer in tools/tidy/layers.go",
				from, to, folder(to)))
		}
	}
	return found
}

func layerOf(dir string) layer {
	best, found := "", layers[""]
	for prefix, l := range layers {
		if prefix != "" && within(dir, prefix) && len(prefix) > len(best) {
			best, found = prefix, l
		}
	}
	return found
}

// folder is the domain of a package: internal/ledger for internal/ledger/internal/db.
func folder(dir string) string {
	parts := strings.SplitN(dir, "/", 3)
	return strings.Join(parts[:min(2, len(parts))], "/")
}

func isProtoUser(dir string) bool {
	for _, user := range protoUsers {
		if within(dir, user) {
			return true
		}
	}
	return false
}

// isTestPackage follows the standard library's naming: httptest, pgtest, notifytest.
func isTestPackage(name string) bool {
	return strings.HasSuffix(name, "test")
}

func direction() string {
	names := make([]string, 0, len(layerNames))
	for l := command; l >= ground; l-- {
		names = append(names, l.String())
	}
	return strings.Join(names, " > ")
}
