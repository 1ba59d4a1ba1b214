// Worker and consumer on a cluster; the API, which azd has deployed, on Container Apps.
using '../main.bicep'

param environmentName = 'aks'
param location = 'westeurope'
param workerPlatform = 'aks'
param aksOidcIssuerUrl = 'https://issuer.example'
param apiExists = true
param workerExists = true
param consumerExists = true
