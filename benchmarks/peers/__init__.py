"""pecan_ray beside the data loaders that users compare it with: same functions, same run, alternating rounds."""
