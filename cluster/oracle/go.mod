// Only marks the root of the module: each build names the module file of a minor version (pins/1.34.mod, …).
module dra-driver.test/oracle

go 1.24.0
