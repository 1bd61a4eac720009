// Package approval keeps requests that one principal makes and another approves or rejects. It owns the table
// approval_requests. A request never changes, and is decided at most once: the row is locked while it is decided, and
// the command that it stands for runs in the same commit. The type approve in internal/rpc (approval.go) is the command
// that does so; who may decide is decided there, too.
package approval
