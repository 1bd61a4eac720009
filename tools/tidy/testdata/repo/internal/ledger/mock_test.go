package ledger

import (
	_ "github.com/pashagolub/pgxmock/v4" // want mock-library
	_ "github.com/stretchr/testify/mock" // want mock-library
	_ "github.com/stretchr/testify/require"
	_ "go.uber.org/mock/gomock" // want mock-library
)
