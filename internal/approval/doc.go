// Package approval keeps requests that one principal makes and another approves or rejects. It owns the table
// approval_requests. The content of a request never changes. A request is decided at most once: its row is locked for
// the decision, and the requested command runs in the same commit. The type approve in internal/rpc (approval.go) is
// the command that does so. The same file checks whether the caller may decide.
package approval
